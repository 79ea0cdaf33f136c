"""What an installation keeps when the power is cut."""
