"""What people see: tables, plots, pages and texts."""
