"""Private servers for development and tests: MySQL, and ZooKeeper."""
