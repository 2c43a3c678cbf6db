-- Which tokens hosts have got of the quota of a namespace in the last minute, packed (foqs/model/grants.py); empty until
-- the first are granted.
CREATE TABLE quota (
  namespace INT UNSIGNED NOT NULL,
  book VARBINARY(8192) NOT NULL,
  PRIMARY KEY (namespace)
) ENGINE=InnoDB;
