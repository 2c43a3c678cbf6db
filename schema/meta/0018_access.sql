-- Who can call, with what, and what that permits (docs/decisions/0050-tokens.md). Hosts read all of it when the version of
-- `access` has changed, which every change raises in its own transaction; the lock of this row keeps changes apart.
-- mode: 0 is open, 1 is permissive, 2 is enforced.
CREATE TABLE access (
  one TINYINT NOT NULL,
  version BIGINT NOT NULL,
  mode TINYINT NOT NULL,
  changed_at BIGINT NOT NULL,
  PRIMARY KEY (one)
) ENGINE=InnoDB;

INSERT INTO access VALUES (1, 0, 0, 0);

CREATE TABLE access_principal (
  name VARBINARY(64) NOT NULL,
  enabled TINYINT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB;

-- namespaces is the name of a namespace, the beginning of names and '*', or '*'. roles has the names of roles, with commas.
CREATE TABLE access_grant (
  principal VARBINARY(64) NOT NULL,
  namespaces VARBINARY(65) NOT NULL,
  roles VARBINARY(255) NOT NULL,
  PRIMARY KEY (principal, namespaces),
  KEY access_grant_by_namespaces (namespaces)
) ENGINE=InnoDB;

-- hash is that of the secret, which is stored nowhere. expires_at is 0 for a token that does not expire.
CREATE TABLE access_token (
  id VARBINARY(12) NOT NULL,
  principal VARBINARY(64) NOT NULL,
  hash VARBINARY(32) NOT NULL,
  label VARBINARY(128) NOT NULL,
  created_at BIGINT NOT NULL,
  created_by VARBINARY(64) NOT NULL,
  expires_at BIGINT NOT NULL,
  used_at BIGINT NOT NULL,
  PRIMARY KEY (id),
  KEY access_token_by_principal (principal)
) ENGINE=InnoDB;

-- name is a URI or a DNS name among the subject alternative names of client certificates.
CREATE TABLE access_certificate (
  name VARBINARY(255) NOT NULL,
  principal VARBINARY(64) NOT NULL,
  label VARBINARY(128) NOT NULL,
  created_at BIGINT NOT NULL,
  created_by VARBINARY(64) NOT NULL,
  PRIMARY KEY (name),
  KEY access_certificate_by_principal (principal)
) ENGINE=InnoDB;
