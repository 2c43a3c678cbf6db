-- How many items of a topic, or of topics with the prefix, can be under lease at the same time; 0 for no limit.
ALTER TABLE topic_policy ADD COLUMN in_flight_max INT NOT NULL DEFAULT 0 AFTER on_dead;
ALTER TABLE topic_prefix_policy ADD COLUMN in_flight_max INT NOT NULL DEFAULT 0 AFTER on_dead;
-- Which permits the shards have of a topic with such a limit, packed (foqs/model/permit_book.py); empty until the first are
-- granted. The topic is the number of its namespace, in four bytes, and its name.
CREATE TABLE permit (
  topic VARBINARY(259) NOT NULL,
  book BLOB NOT NULL,
  waited_until BIGINT NOT NULL,
  PRIMARY KEY (topic),
  KEY waited (waited_until)
) ENGINE=InnoDB;
