"""What the runner does about hosts beside this one."""
