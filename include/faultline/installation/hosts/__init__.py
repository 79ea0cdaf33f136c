"""Several hosts on one machine: each has processes, a network, a disk and an SSH server of its own."""
