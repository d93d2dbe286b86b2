"""How many devices each training has, decided from what it has shown."""
