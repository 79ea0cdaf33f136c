"""The fault actions: each module here declares one or more, which `fault.registry` finds."""
