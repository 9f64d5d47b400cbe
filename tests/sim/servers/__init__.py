"""Parameter servers with three copies of everything, in a cluster of controllers, and who pushes to them."""
