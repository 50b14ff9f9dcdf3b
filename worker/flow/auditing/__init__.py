"""How an audit goes through the tables: which streams there are, and how a page of each is judged. No step of its own."""
