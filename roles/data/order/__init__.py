"""Which examples a pass visits, in what order, and which server owns them. Pure."""
