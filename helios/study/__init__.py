"""Study of a history, of what it shows and what follows."""
