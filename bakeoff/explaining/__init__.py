"""Why a cell takes as long as it does, and where it loses precision: by the names of the user's modules."""
