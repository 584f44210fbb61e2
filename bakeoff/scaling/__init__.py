"""Where contests run: places of one machine, a pool of controllers, a Ray cluster."""
