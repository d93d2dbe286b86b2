"""Study of a history, from what it shows to what follows from it."""
