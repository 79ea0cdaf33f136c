"""Files, processes and time: what every room above builds on."""
