"""What a developer asks of the programs: the fastest tiles, their text, their cross-compiled code."""
