"""Export of a history, as it is or anonymous."""
