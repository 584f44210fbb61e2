"""What leaves Bakeoff: the export of a build, and scripts that measure a cell again."""
