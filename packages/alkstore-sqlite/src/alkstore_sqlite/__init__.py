"""alkstore in one SQLite file: many processes, beside the application's own tables."""
