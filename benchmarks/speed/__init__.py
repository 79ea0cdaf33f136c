"""How fast Faultline itself is."""
