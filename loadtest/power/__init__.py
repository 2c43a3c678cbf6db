"""Cut the power of a MySQL server under load, again and again."""
