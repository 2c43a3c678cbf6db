-- The move of slots from one shard to another that is under way (docs/decisions/0036-moving-slots.md); one row at most.
-- version: that of the slot table in which they lead to the other shard. slots: two bytes each.
-- phase: 0 while their ids are copied, 1 once the shard that has them is to give them (foqs/model/slots.py).
CREATE TABLE slot_move (
  one TINYINT NOT NULL,
  version BIGINT UNSIGNED NOT NULL,
  from_shard SMALLINT UNSIGNED NOT NULL,
  to_shard SMALLINT UNSIGNED NOT NULL,
  slots VARBINARY(2048) NOT NULL,
  phase TINYINT NOT NULL,
  PRIMARY KEY (one)
) ENGINE=InnoDB;
