-- How far this shard has copied the items that waited when a consumer group was created. Its owner's transactions alone
-- write it: a row before the first item with a copy of its own, and the position together with the copies.
-- job: names the copy in its namespace. up_to: the last key of an item that can lack its copy. position: the key up to which
-- items are copied. copied: the number of copies.
CREATE TABLE group_copy (
  namespace INT UNSIGNED NOT NULL,
  job VARBINARY(64) NOT NULL,
  up_to BIGINT UNSIGNED NOT NULL,
  position BIGINT UNSIGNED NOT NULL,
  copied BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (namespace, job)
) ENGINE=InnoDB;
