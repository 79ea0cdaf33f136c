"""Clusters that exist: what their Connections say, how programs log in there, and whether they can be measured on."""
