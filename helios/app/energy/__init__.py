"""What sleeping nodes would have saved, on a history of node counts or of jobs, and what they did save."""
