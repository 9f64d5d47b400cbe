"""Controllers, their clients, and nodes that hold leases."""
