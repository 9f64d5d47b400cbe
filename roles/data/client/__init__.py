"""The client side: reads from one or several data servers as if from one."""
