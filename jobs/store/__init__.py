"""The only place with queries: functions that take the database, open one short transaction, and return plain rows."""
