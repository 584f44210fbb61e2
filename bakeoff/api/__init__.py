"""What a Python program calls: `bakeoff.compare` and what it returns. `bakeoff` itself exports the names."""
