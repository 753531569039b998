"""Commands of the server, its tokens, audit log and database."""
