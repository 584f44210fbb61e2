"""What the commands do that need more than one room: a run, a preview, a bisection, a self-check, environments."""
