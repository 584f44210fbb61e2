"""A package that many research repositories have."""
