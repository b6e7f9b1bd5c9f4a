-- `centre` is by what remotes know the centre again when it was restored.
CREATE TABLE tidewater_meta (
  format_version BIGINT NOT NULL,
  centre LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  -- Counts deployments: servers notice by it that there was another one.
  deployment BIGINT NOT NULL DEFAULT (0)
) ENGINE = InnoDB STATS_PERSISTENT = 0;

CREATE TABLE tidewater_signing_key (
  id BIGINT NOT NULL PRIMARY KEY,
  secret LONGBLOB NOT NULL,
  created_ms BIGINT NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;

CREATE TABLE tidewater_user_account (
  name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL PRIMARY KEY,
  password_hash LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  disabled BOOLEAN NOT NULL,
  created_ms BIGINT NOT NULL,
  -- What was said of the user at the last sign-in without a password of this database: when, by
  -- whom, and claims as JSON.
  proven_ms BIGINT NOT NULL DEFAULT (0),
  proven_by LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL DEFAULT (''),
  claims LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL DEFAULT ('')
) ENGINE = InnoDB STATS_PERSISTENT = 0;

CREATE TABLE tidewater_remote (
  id VARBINARY(1000) NOT NULL PRIMARY KEY,
  user_name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  revoked BOOLEAN NOT NULL,
  credential_hash LONGBLOB NOT NULL,
  previous_credential_hash LONGBLOB NOT NULL,
  rotated_ms BIGINT NOT NULL,
  created_ms BIGINT NOT NULL,
  last_sync_ms BIGINT NOT NULL,
  -- Which schemas it has.
  held_schemas LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL DEFAULT (''),
  -- How many times it has synced since it last compared everything.
  unverified BIGINT NOT NULL DEFAULT (0),
  -- What people call the device; empty if nobody has named it.
  device_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL DEFAULT ('')
) ENGINE = InnoDB STATS_PERSISTENT = 0;
CREATE INDEX tidewater_remote_user ON tidewater_remote (user_name);

-- Tells a remote that is unknown because it was removed from one that is not known yet.
CREATE TABLE tidewater_removed_remote (
  id VARBINARY(1000) NOT NULL PRIMARY KEY
) ENGINE = InnoDB STATS_PERSISTENT = 0;

-- Uploads that were forgotten, and have come back.
CREATE TABLE tidewater_given_back (
  upload_id VARBINARY(1000) NOT NULL PRIMARY KEY,
  at_ms BIGINT NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;

CREATE TABLE tidewater_subscription (
  remote_id VARBINARY(1000) NOT NULL,
  publication VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  sequence BIGINT NOT NULL DEFAULT (0),
  upload_id LONGBLOB,
  result LONGBLOB,
  -- When it was applied.
  uploaded_ms BIGINT NOT NULL DEFAULT (0),
  -- The last scope handed out, the one that the remote held when it was, and the one whose lost
  -- partitions have taken their last upload.
  scope_serial BIGINT NOT NULL DEFAULT (0),
  previous_serial BIGINT NOT NULL DEFAULT (0),
  graced_serial BIGINT NOT NULL DEFAULT (0),
  -- Which scope was the newest when the remote gave back last: checkpoints with older ones know
  -- nothing of what became of that.
  given_back_serial BIGINT,
  PRIMARY KEY (remote_id, publication)
) ENGINE = InnoDB STATS_PERSISTENT = 0;

CREATE TABLE tidewater_publication (
  name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL PRIMARY KEY,
  definition LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  encoded_schema LONGBLOB NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;

-- By which rows of a published table a remote holds; another number when its partition columns are
-- others.
CREATE TABLE tidewater_rule (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  publication LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  table_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  identity LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;

-- Partitions of which checkpoints have a digest; see engine/scope/difference.rs.
CREATE TABLE tidewater_scope_piece (
  digest VARBINARY(1000) NOT NULL PRIMARY KEY,
  at_ms BIGINT NOT NULL,
  content LONGBLOB NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;

-- Schemas that are not deployed any more: some remotes still have them.
CREATE TABLE tidewater_past_schema (
  hash VARBINARY(1000) NOT NULL PRIMARY KEY,
  publication LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  encoded_schema LONGBLOB NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;

CREATE TABLE tidewater_conflict (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at_ms BIGINT NOT NULL,
  remote_id LONGBLOB NOT NULL,
  user_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  publication LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  table_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  row_key LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  operation LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  pre_image LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  uploaded LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  winner LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  replaced LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  outcome LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  settled_ms BIGINT,
  settled_by LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  settled_as LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  -- What the scripts of the sync went by.
  sync_notes LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL DEFAULT ('')
) ENGINE = InnoDB STATS_PERSISTENT = 0;

CREATE TABLE tidewater_refused (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at_ms BIGINT NOT NULL,
  remote_id VARBINARY(1000) NOT NULL,
  user_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  publication VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  table_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  row_key LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  operation LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  uploaded LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  code LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  reason LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  -- The number of the upload.
  sequence BIGINT NOT NULL,
  pre_image LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  -- The refused row that it refers to, if it was refused for that.
  parent_table LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  parent_key LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  sync_notes LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL DEFAULT ('')
) ENGINE = InnoDB STATS_PERSISTENT = 0;
CREATE INDEX tidewater_refused_remote ON tidewater_refused (remote_id, publication);

-- Refused rows that are settled, each once, by the number of its last attempt.
CREATE TABLE tidewater_settled_refusal (
  id BIGINT NOT NULL PRIMARY KEY,
  at_ms BIGINT NOT NULL,
  remote_id VARBINARY(1000) NOT NULL,
  user_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  publication VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  table_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  row_key LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  operation LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  uploaded LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  code LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  reason LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  sequence BIGINT NOT NULL,
  pre_image LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  parent_table LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  parent_key LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  attempts BIGINT NOT NULL,
  settled_ms BIGINT NOT NULL,
  settled_by LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  settled_as LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  settled_row LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */,
  settled_reason LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */
) ENGINE = InnoDB STATS_PERSISTENT = 0;
CREATE INDEX tidewater_settled_refusal_remote ON tidewater_settled_refusal (remote_id, publication, id);

CREATE TABLE tidewater_sync_history (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  remote_id LONGBLOB,
  user_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  publications LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  started_ms BIGINT NOT NULL,
  duration_ms BIGINT NOT NULL,
  inserts BIGINT NOT NULL,
  updates BIGINT NOT NULL,
  deletes BIGINT NOT NULL,
  upserts BIGINT NOT NULL,
  removals BIGINT NOT NULL,
  conflicts BIGINT NOT NULL,
  refused BIGINT NOT NULL,
  bytes_received BIGINT NOT NULL,
  bytes_sent BIGINT NOT NULL,
  error LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;
CREATE INDEX tidewater_sync_history_started ON tidewater_sync_history (started_ms);

-- Which remote has which numbers for the rows that it inserts.
CREATE TABLE tidewater_identity_block (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  table_name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  column_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  remote_id LONGBLOB NOT NULL,
  user_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  first BIGINT NOT NULL,
  last BIGINT NOT NULL,
  at_ms BIGINT NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;
CREATE INDEX tidewater_identity_block_table ON tidewater_identity_block (table_name, last);

-- Who has written a row last by an upload, where conflicts go by the rank of users; as long as the
-- row is what that upload made of it, which the image tells.
CREATE TABLE tidewater_row_writer (
  publication VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  table_name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  row_key VARBINARY(1000) NOT NULL,
  user_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  -- NULL: none.
  user_rank BIGINT,
  image LONGBLOB NOT NULL,
  at_ms BIGINT NOT NULL,
  PRIMARY KEY (publication, table_name, row_key)
) ENGINE = InnoDB STATS_PERSISTENT = 0;
CREATE INDEX tidewater_row_writer_at ON tidewater_row_writer (at_ms);

-- What takes effect once, by a key that its user chose; the outcome is NULL until it is known.
CREATE TABLE tidewater_once (
  user_name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  call_key VARBINARY(1000) NOT NULL,
  kind BIGINT NOT NULL,
  procedure_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  at_ms BIGINT NOT NULL,
  outcome LONGBLOB,
  PRIMARY KEY (user_name, call_key)
) ENGINE = InnoDB STATS_PERSISTENT = 0;
CREATE INDEX tidewater_once_at ON tidewater_once (at_ms);

-- The number of the last event of each space.
CREATE TABLE tidewater_space (
  name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL PRIMARY KEY,
  last BIGINT NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;

CREATE TABLE tidewater_event (
  space VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  id BIGINT NOT NULL,
  -- Random, to tell the event from another one of this number.
  check_bytes LONGBLOB NOT NULL,
  subject VARCHAR(255) CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  payload LONGBLOB NOT NULL,
  user_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  at_ms BIGINT NOT NULL,
  PRIMARY KEY (space, id)
) ENGINE = InnoDB STATS_PERSISTENT = 0;
CREATE INDEX tidewater_event_subject ON tidewater_event (space, subject, id);

-- What remotes and the centre were found at odds about.
CREATE TABLE tidewater_incident (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  at_ms BIGINT NOT NULL,
  kind LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  remote_id LONGBLOB,
  user_name LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  publication LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  detail LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;

-- The steps of the running deployment that are not done yet. As long as there are any, no server
-- serves.
CREATE TABLE tidewater_deployment_step (
  number BIGINT NOT NULL PRIMARY KEY,
  description LONGTEXT CHARACTER SET utf8mb4 COLLATE /*M!100202 utf8mb4_nopad_bin *//*!80017 utf8mb4_0900_bin */ NOT NULL,
  -- Whether it makes or drops the server's own tables.
  is_of_state BOOLEAN NOT NULL
) ENGINE = InnoDB STATS_PERSISTENT = 0;

-- conflicts::LIST
SELECT at_ms, remote_id, user_name, publication, table_name, row_key, operation, pre_image, uploaded, winner, replaced, outcome, id, settled_ms, settled_by, settled_as FROM tidewater_conflict ORDER BY id;

-- conflicts::FIND
SELECT at_ms, remote_id, user_name, publication, table_name, row_key, operation, pre_image, uploaded, winner, replaced, outcome, id, settled_ms, settled_by, settled_as FROM tidewater_conflict WHERE (?1 = '' OR table_name = ?1) AND (?2 = '' OR user_name = ?2) AND (?3 = '' OR outcome = ?3) AND (?4 = '' OR (outcome = ?4 AND settled_ms IS NULL)) ORDER BY id DESC LIMIT ?5;

-- conflicts::READ
SELECT at_ms, remote_id, user_name, publication, table_name, row_key, operation, pre_image, uploaded, winner, replaced, outcome, id, settled_ms, settled_by, settled_as FROM tidewater_conflict WHERE id = ?1;

-- conflicts::LIST_OF_ROW
SELECT at_ms, remote_id, user_name, publication, table_name, row_key, operation, pre_image, uploaded, winner, replaced, outcome, id, settled_ms, settled_by, settled_as FROM tidewater_conflict WHERE table_name = ?1 AND row_key = ?2 ORDER BY id DESC;

-- conflicts::READ_NOTES
SELECT sync_notes FROM tidewater_conflict WHERE id = ?1;

-- conflicts::INSERT
INSERT INTO tidewater_conflict (at_ms, remote_id, user_name, publication, table_name, row_key, operation, pre_image, uploaded, winner, replaced, outcome, sync_notes) VALUES (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14);

-- conflicts::LOCK
UPDATE tidewater_conflict SET outcome = outcome WHERE id = ?1;

-- conflicts::SETTLE
UPDATE tidewater_conflict SET settled_ms = ?2, settled_by = ?3, settled_as = ?4 WHERE id = ?1;

-- conflicts::PRUNE
DELETE FROM tidewater_conflict WHERE at_ms < ?1 AND (outcome <> 'parked' OR settled_ms IS NOT NULL) LIMIT ?2;

-- deployment_steps::LIST
SELECT description, is_of_state FROM tidewater_deployment_step ORDER BY number;

-- deployment_steps::INSERT
INSERT INTO tidewater_deployment_step (number, description, is_of_state) VALUES (?2, ?3, ?4);

-- deployment_steps::DELETE
DELETE FROM tidewater_deployment_step WHERE number = ?1;

-- deployment_steps::DELETE_ALL
DELETE FROM tidewater_deployment_step;

-- events::TAKE_NUMBERS
INSERT INTO tidewater_space (name, last) VALUES (?2, ?3) ON DUPLICATE KEY UPDATE last = tidewater_space.last + VALUES(last);

-- events::FIND_LAST_NUMBERS
SELECT v.n, last FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS CHAR) AS c1) AS v JOIN tidewater_space ON name = v.c1;

-- events::INSERT
INSERT INTO tidewater_event (space, id, check_bytes, subject, payload, user_name, at_ms) VALUES (?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- events::LIST
SELECT id, check_bytes, subject, payload, user_name, at_ms FROM ( SELECT e.*, sum(length(payload)) OVER (ORDER BY id) - length(payload) AS bytes_before FROM (SELECT id, check_bytes, subject, payload, user_name, at_ms FROM tidewater_event WHERE space = ?1 AND id > ?2 ORDER BY id LIMIT ?3) e) s WHERE bytes_before < ?4 ORDER BY id;

-- events::LIST_LAST_VALUES
WITH RECURSIVE subjects (subject) AS ( SELECT (SELECT subject FROM tidewater_event WHERE space = ?1 AND subject > ?2 ORDER BY subject LIMIT 1) UNION ALL SELECT (SELECT e.subject FROM tidewater_event e WHERE e.space = ?1 AND e.subject > s.subject ORDER BY e.subject LIMIT 1) FROM subjects s WHERE s.subject IS NOT NULL ), found AS (SELECT subject FROM subjects WHERE subject IS NOT NULL LIMIT ?3) SELECT id, check_bytes, subject, payload, user_name, at_ms FROM ( SELECT e.*, sum(length(payload)) OVER (ORDER BY subject) - length(payload) AS bytes_before FROM tidewater_event e WHERE space = ?1 AND id IN ( SELECT (SELECT max(m.id) FROM tidewater_event m WHERE m.space = ?1 AND m.subject = f.subject) FROM found f)) s WHERE bytes_before < ?4 ORDER BY subject;

-- events::READ_CHECK
SELECT check_bytes FROM tidewater_event WHERE space = ?1 AND id = ?2;

-- events::READ_PIECE
SELECT max(id), min(at_ms) FROM (SELECT id, at_ms FROM tidewater_event WHERE space = ?1 AND id > ?2 ORDER BY id LIMIT ?3) p;

-- events::PRUNE
DELETE FROM tidewater_event WHERE space = ?1 AND id > ?2 AND id <= ?3 AND at_ms < ?4;

-- events::PRUNE_BUT_LAST
DELETE tidewater_event FROM tidewater_event JOIN (SELECT space, id FROM tidewater_event WHERE space = ?1 AND id > ?2 AND id <= ?3 AND at_ms < ?4 AND id < (SELECT max(m.id) FROM tidewater_event m WHERE m.space = ?1 AND m.subject = tidewater_event.subject) LIMIT 18446744073709551615) AS found USING (space, id);

-- figures::COUNT
SELECT (SELECT count(*) FROM tidewater_user_account), (SELECT count(*) FROM tidewater_user_account WHERE disabled), (SELECT count(*) FROM tidewater_remote), (SELECT count(*) FROM tidewater_remote WHERE revoked), (SELECT count(*) FROM tidewater_conflict), (SELECT count(*) FROM (SELECT DISTINCT remote_id, publication, table_name, row_key FROM tidewater_refused) AS refused), (SELECT count(*) FROM tidewater_conflict WHERE outcome = 'parked' AND settled_ms IS NULL);

-- given_back::INSERT
INSERT INTO tidewater_given_back (upload_id, at_ms) VALUES (?1, ?2);

-- given_back::DELETE_ALL
DELETE FROM tidewater_given_back;

-- given_back::PRUNE
DELETE FROM tidewater_given_back WHERE at_ms < ?1 LIMIT ?2;

-- incidents::COUNT
SELECT kind, count(*) FROM tidewater_incident GROUP BY kind ORDER BY kind;

-- incidents::LIST_LAST
SELECT at_ms, kind, remote_id, user_name, publication, detail FROM tidewater_incident ORDER BY id DESC LIMIT 20;

-- incidents::INSERT
INSERT INTO tidewater_incident (at_ms, kind, remote_id, user_name, publication, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6);

-- incidents::PRUNE
DELETE FROM tidewater_incident WHERE at_ms < ?1 LIMIT ?2;

-- marks::FIND
SELECT v.n FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS BINARY) AS c1) AS v WHERE (SELECT id FROM tidewater_mark WHERE id = v.c1) IS NOT NULL;

-- meta::INSERT
INSERT INTO tidewater_meta (format_version, centre) VALUES (1, '');

-- meta::READ_VERSION
SELECT format_version FROM tidewater_meta;

-- meta::READ_CENTRE
SELECT centre, deployment FROM tidewater_meta;

-- meta::READ_DEPLOYMENT
SELECT deployment FROM tidewater_meta;

-- meta::LOCK
UPDATE tidewater_meta SET centre = centre;

-- meta::COUNT_DEPLOYMENT
UPDATE tidewater_meta SET deployment = deployment + 1;

-- meta::NAME
UPDATE tidewater_meta SET centre = ?1 WHERE centre = '';

-- meta::RENAME
UPDATE tidewater_meta SET centre = ?1, deployment = deployment + 1;

-- number_blocks::COUNT
SELECT table_name, min(column_name), CAST(sum(last - first + 1) AS SIGNED), max(last), count(DISTINCT remote_id) FROM tidewater_identity_block GROUP BY table_name ORDER BY table_name;

-- number_blocks::LIST_LAST
SELECT table_name, remote_id, user_name, first, last, at_ms FROM tidewater_identity_block ORDER BY id DESC LIMIT 20;

-- number_blocks::READ_HIGHEST
SELECT max(last) FROM tidewater_identity_block WHERE table_name = ?1;

-- number_blocks::INSERT
INSERT INTO tidewater_identity_block (table_name, column_name, remote_id, user_name, first, last, at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- once_keys::READ
SELECT kind, procedure_name, outcome, at_ms FROM tidewater_once WHERE user_name = ?1 AND call_key = ?2;

-- once_keys::INSERT
INSERT INTO tidewater_once (user_name, call_key, kind, procedure_name, at_ms) VALUES (?1, ?2, ?3, ?4, ?5);

-- once_keys::INSERT_FINISHED
INSERT INTO tidewater_once (user_name, call_key, kind, procedure_name, at_ms, outcome) VALUES (?1, ?2, ?3, ?4, ?5, ?6);

-- once_keys::FINISH
UPDATE tidewater_once SET outcome = ?4 WHERE user_name = ?1 AND call_key = ?2 AND kind = ?3 AND outcome IS NULL;

-- once_keys::DELETE_UNFINISHED
DELETE FROM tidewater_once WHERE user_name = ?1 AND call_key = ?2 AND kind = ?3 AND outcome IS NULL;

-- once_keys::PRUNE
DELETE FROM tidewater_once WHERE at_ms < ?1 LIMIT ?2;

-- publications::LIST
SELECT name, definition, encoded_schema FROM tidewater_publication;

-- publications::SAVE
INSERT INTO tidewater_publication (name, definition, encoded_schema) VALUES (?1, ?2, ?3) ON DUPLICATE KEY UPDATE definition = VALUES(definition), encoded_schema = VALUES(encoded_schema);

-- publications::DELETE
DELETE FROM tidewater_publication WHERE name = ?1;

-- publications::LIST_PAST_SCHEMAS
SELECT hash, encoded_schema FROM tidewater_past_schema;

-- publications::INSERT_PAST_SCHEMA
INSERT INTO tidewater_past_schema (hash, publication, encoded_schema) VALUES (?1, ?2, ?3);

-- refusals::LIST
SELECT r.id, r.at_ms, r.remote_id, r.user_name, r.publication, r.table_name, r.row_key, r.operation, r.uploaded, r.code, r.reason, r.sequence, r.pre_image, r.parent_table, r.parent_key, 1 FROM tidewater_refused AS r ORDER BY r.id;

-- refusals::FIND
SELECT r.id, r.at_ms, r.remote_id, r.user_name, r.publication, r.table_name, r.row_key, r.operation, r.uploaded, r.code, r.reason, r.sequence, r.pre_image, r.parent_table, r.parent_key, g.attempts FROM (SELECT max(id) AS id, count(*) AS attempts FROM tidewater_refused GROUP BY remote_id, publication, table_name, row_key) AS g JOIN tidewater_refused AS r ON r.id = g.id WHERE (?1 = '' OR r.table_name = ?1) AND (?2 = '' OR r.user_name = ?2) AND (?3 = '' OR r.code = ?3) ORDER BY r.id DESC LIMIT ?4;

-- refusals::LIST_OF_ROW
SELECT r.id, r.at_ms, r.remote_id, r.user_name, r.publication, r.table_name, r.row_key, r.operation, r.uploaded, r.code, r.reason, r.sequence, r.pre_image, r.parent_table, r.parent_key, g.attempts FROM (SELECT max(id) AS id, count(*) AS attempts FROM tidewater_refused GROUP BY remote_id, publication, table_name, row_key) AS g JOIN tidewater_refused AS r ON r.id = g.id WHERE r.table_name = ?1 AND r.row_key = ?2;

-- refusals::READ
SELECT r.id, r.at_ms, r.remote_id, r.user_name, r.publication, r.table_name, r.row_key, r.operation, r.uploaded, r.code, r.reason, r.sequence, r.pre_image, r.parent_table, r.parent_key, (SELECT count(*) FROM tidewater_refused AS b WHERE b.remote_id = r.remote_id AND b.publication = r.publication AND b.table_name = r.table_name AND b.row_key = r.row_key) FROM tidewater_refused AS a JOIN tidewater_refused AS r ON a.remote_id = r.remote_id AND a.publication = r.publication AND a.table_name = r.table_name AND a.row_key = r.row_key WHERE a.id = ?1 ORDER BY r.id DESC LIMIT 1;

-- refusals::READ_NOTES
SELECT sync_notes FROM tidewater_refused WHERE id = ?1;

-- refusals::LIST_ATTEMPTS
SELECT id FROM tidewater_refused WHERE remote_id = ?1 AND publication = ?2 AND table_name = ?3 AND row_key = ?4;

-- refusals::LIST_OF_REMOTE
SELECT id, table_name, row_key, code, sequence FROM tidewater_refused WHERE remote_id = ?1 AND publication = ?2;

-- refusals::LIST_INSERTS_OF_REMOTE
SELECT table_name, row_key, uploaded, sequence, code FROM tidewater_refused WHERE remote_id = ?1 AND publication = ?2 AND operation = 'insert';

-- refusals::LIST_WRITES_OF_REMOTE
SELECT table_name, row_key, uploaded FROM tidewater_refused WHERE remote_id = ?1 AND publication = ?2 AND operation <> 'delete';

-- refusals::FIND_REMOTES
SELECT DISTINCT r.remote_id FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS BINARY) AS c1, CAST(?3 AS CHAR) AS c2) AS v JOIN tidewater_refused r ON r.remote_id = v.c1 AND r.publication = v.c2;

-- refusals::INSERT
INSERT INTO tidewater_refused (at_ms, remote_id, user_name, publication, table_name, row_key, operation, uploaded, code, reason, sequence, pre_image, parent_table, parent_key, sync_notes) VALUES (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16);

-- refusals::LOCK
UPDATE tidewater_refused SET code = code WHERE id = ?1;

-- refusals::DELETE
DELETE FROM tidewater_refused WHERE id IN (SELECT v.c1 FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS SIGNED) AS c1) AS v);

-- refusals::PRUNE
DELETE FROM tidewater_refused WHERE at_ms < ?1 LIMIT ?2;

-- remotes::LIST
SELECT id, user_name, revoked, credential_hash, previous_credential_hash, rotated_ms, created_ms, last_sync_ms, unverified, device_name FROM tidewater_remote ORDER BY user_name, created_ms, id;

-- remotes::FIND
SELECT v.n, id, user_name, revoked, credential_hash, previous_credential_hash, rotated_ms, created_ms, last_sync_ms, unverified, device_name FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS BINARY) AS c1) AS v JOIN tidewater_remote ON id = v.c1;

-- remotes::LIST_SCHEMAS
SELECT id, user_name, last_sync_ms, held_schemas FROM tidewater_remote WHERE NOT revoked ORDER BY user_name, id;

-- remotes::FIND_STANDING
SELECT r.id, r.revoked, u.disabled FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS BINARY) AS c1) AS v JOIN tidewater_remote r ON r.id = v.c1 LEFT JOIN tidewater_user_account u ON u.name = r.user_name;

-- remotes::READ_OLDEST_SYNC
SELECT min(last_sync_ms) FROM tidewater_remote WHERE last_sync_ms > 0 AND NOT revoked;

-- remotes::SAVE
INSERT INTO tidewater_remote (id, user_name, revoked, credential_hash, previous_credential_hash, rotated_ms, created_ms, last_sync_ms, device_name) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON DUPLICATE KEY UPDATE credential_hash = VALUES(credential_hash), previous_credential_hash = VALUES(previous_credential_hash), rotated_ms = VALUES(rotated_ms);

-- remotes::NAME_DEVICE
UPDATE tidewater_remote SET device_name = ?2 WHERE id = ?1;

-- remotes::SET_REVOKED
UPDATE tidewater_remote SET revoked = ?2 WHERE id = ?1;

-- remotes::REPLACE_PREVIOUS_CREDENTIAL
UPDATE tidewater_remote SET previous_credential_hash = ?2 WHERE id = ?1 AND previous_credential_hash = ?3;

-- remotes::NOTE_SYNCS
UPDATE tidewater_remote SET last_sync_ms = CASE WHEN last_sync_ms < ?3 THEN ?3 ELSE last_sync_ms END, held_schemas = CASE ?4 WHEN '' THEN held_schemas ELSE ?4 END, unverified = CASE WHEN ?3 = 0 THEN unverified WHEN ?5 = 1 THEN 0 ELSE unverified + 1 END WHERE id = ?2;

-- remotes::DELETE
DELETE FROM tidewater_remote WHERE id = ?1;

-- remotes::DELETE_OF_USER
DELETE FROM tidewater_remote WHERE user_name = ?1;

-- remotes::DELETE_ALL
DELETE FROM tidewater_remote;

-- remotes::FIND_REMOVED
SELECT v.n FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS BINARY) AS c1) AS v JOIN tidewater_removed_remote ON id = v.c1;

-- remotes::NOTE_REMOVED
INSERT IGNORE INTO tidewater_removed_remote (id) SELECT id FROM tidewater_remote WHERE id = ?1;

-- remotes::NOTE_REMOVED_OF_USER
INSERT IGNORE INTO tidewater_removed_remote (id) SELECT id FROM tidewater_remote WHERE user_name = ?1;

-- remotes::DELETE_ALL_REMOVED
DELETE FROM tidewater_removed_remote;

-- row_writers::FIND
SELECT v.n, user_rank, image FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS CHAR) AS c1, CAST(?3 AS CHAR) AS c2, CAST(?4 AS BINARY) AS c3) AS v JOIN tidewater_row_writer ON publication = v.c1 AND table_name = v.c2 AND row_key = v.c3;

-- row_writers::SAVE
INSERT INTO tidewater_row_writer (publication, table_name, row_key, user_name, user_rank, image, at_ms) VALUES (?2, ?3, ?4, ?5, ?6, ?7, ?8) ON DUPLICATE KEY UPDATE user_name = IF(@tidewater_updates := (tidewater_row_writer.image <> VALUES(image) OR tidewater_row_writer.user_rank IS NULL OR tidewater_row_writer.user_rank <= VALUES(user_rank)), VALUES(user_name), tidewater_row_writer.user_name), user_rank = IF(@tidewater_updates, VALUES(user_rank), tidewater_row_writer.user_rank), image = IF(@tidewater_updates, VALUES(image), tidewater_row_writer.image), at_ms = IF(@tidewater_updates, VALUES(at_ms), tidewater_row_writer.at_ms);

-- row_writers::PRUNE
DELETE FROM tidewater_row_writer WHERE at_ms < ?1 LIMIT ?2;

-- rules::LIST
SELECT id, publication, table_name, identity FROM tidewater_rule;

-- rules::INSERT
INSERT INTO tidewater_rule (publication, table_name, identity) VALUES (?1, ?2, ?3);

-- rules::DELETE
DELETE FROM tidewater_rule WHERE id = ?1;

-- rules::DELETE_OF_PUBLICATION
DELETE FROM tidewater_rule WHERE publication = ?1;

-- scope_pieces::READ
SELECT content FROM tidewater_scope_piece WHERE digest = ?1;

-- scope_pieces::FIND
SELECT v.n, content FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS BINARY) AS c1) AS v JOIN tidewater_scope_piece ON digest = v.c1;

-- scope_pieces::SAVE
INSERT INTO tidewater_scope_piece (digest, at_ms, content) VALUES (?1, ?2, ?3) ON DUPLICATE KEY UPDATE at_ms = IF(@tidewater_updates := (tidewater_scope_piece.at_ms < VALUES(at_ms) - 86400000), VALUES(at_ms), tidewater_scope_piece.at_ms);

-- scope_pieces::PRUNE
DELETE FROM tidewater_scope_piece WHERE at_ms < ?1 LIMIT ?2;

-- settled_refusals::FIND
SELECT r.id, r.at_ms, r.remote_id, r.user_name, r.publication, r.table_name, r.row_key, r.operation, r.uploaded, r.code, r.reason, r.sequence, r.pre_image, r.parent_table, r.parent_key, r.attempts, r.settled_ms, r.settled_by, r.settled_as, r.settled_row, r.settled_reason FROM tidewater_settled_refusal AS r WHERE (?1 = '' OR r.table_name = ?1) AND (?2 = '' OR r.user_name = ?2) AND (?3 = '' OR r.code = ?3) ORDER BY r.id DESC LIMIT ?4;

-- settled_refusals::LIST_OF_ROW
SELECT r.id, r.at_ms, r.remote_id, r.user_name, r.publication, r.table_name, r.row_key, r.operation, r.uploaded, r.code, r.reason, r.sequence, r.pre_image, r.parent_table, r.parent_key, r.attempts, r.settled_ms, r.settled_by, r.settled_as, r.settled_row, r.settled_reason FROM tidewater_settled_refusal AS r WHERE r.table_name = ?1 AND r.row_key = ?2;

-- settled_refusals::READ
SELECT r.id, r.at_ms, r.remote_id, r.user_name, r.publication, r.table_name, r.row_key, r.operation, r.uploaded, r.code, r.reason, r.sequence, r.pre_image, r.parent_table, r.parent_key, r.attempts, r.settled_ms, r.settled_by, r.settled_as, r.settled_row, r.settled_reason FROM tidewater_settled_refusal AS r WHERE r.id = ?1;

-- settled_refusals::LIST_OF_OPERATORS
SELECT id, table_name, row_key, sequence, settled_ms, settled_by, settled_as FROM tidewater_settled_refusal WHERE remote_id = ?1 AND publication = ?2 AND sequence >= ?3 AND id > ?4 AND settled_as IN ('replayed', 'edited', 'discarded') ORDER BY id LIMIT ?5;

-- settled_refusals::LIST_SENT_AGAIN
SELECT table_name, row_key, sequence FROM tidewater_settled_refusal WHERE remote_id = ?1 AND publication = ?2 AND sequence >= ?3 AND settled_as IN ('replayed', 'edited');

-- settled_refusals::INSERT
INSERT INTO tidewater_settled_refusal (id, at_ms, remote_id, user_name, publication, table_name, row_key, operation, uploaded, code, reason, sequence, pre_image, parent_table, parent_key, attempts, settled_ms, settled_by, settled_as, settled_row, settled_reason) SELECT r.id, r.at_ms, r.remote_id, r.user_name, r.publication, r.table_name, r.row_key, r.operation, r.uploaded, r.code, r.reason, r.sequence, r.pre_image, r.parent_table, r.parent_key, v.c2, v.c3, v.c4, v.c5, v.c6, v.c7 FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS SIGNED) AS c1, CAST(?3 AS SIGNED) AS c2, CAST(?4 AS SIGNED) AS c3, CAST(?5 AS CHAR) AS c4, CAST(?6 AS CHAR) AS c5, CAST(?7 AS CHAR) AS c6, CAST(?8 AS CHAR) AS c7) AS v JOIN tidewater_refused AS r ON r.id = v.c1;

-- settled_refusals::PRUNE
DELETE FROM tidewater_settled_refusal WHERE settled_ms < ?1 LIMIT ?2;

-- signing_keys::LIST
SELECT id, secret, created_ms FROM tidewater_signing_key ORDER BY created_ms DESC, id DESC;

-- signing_keys::FIND_ANY
SELECT 1 FROM tidewater_signing_key LIMIT 1;

-- signing_keys::INSERT
INSERT INTO tidewater_signing_key (id, secret, created_ms) VALUES (?1, ?2, ?3);

-- signing_keys::INSERT_FIRST
INSERT INTO tidewater_signing_key (id, secret, created_ms) VALUES (1, ?1, ?2);

-- signing_keys::INSERT_NEXT
INSERT INTO tidewater_signing_key (id, secret, created_ms) SELECT coalesce(max(id), 0) + 1, ?1, ?2 FROM tidewater_signing_key;

-- signing_keys::DELETE_UNLESS_LAST
DELETE tidewater_signing_key FROM tidewater_signing_key JOIN (SELECT id FROM tidewater_signing_key WHERE id = ?1 AND EXISTS (SELECT 1 FROM tidewater_signing_key WHERE id <> ?1) LIMIT 18446744073709551615) AS found USING (id);

-- signing_keys::DELETE_OTHERS
DELETE FROM tidewater_signing_key WHERE secret <> ?1;

-- signing_keys::PRUNE
DELETE tidewater_signing_key FROM tidewater_signing_key JOIN (SELECT id FROM tidewater_signing_key WHERE EXISTS (SELECT 1 FROM tidewater_signing_key newer WHERE newer.id > tidewater_signing_key.id AND newer.created_ms < ?1) LIMIT ?2) AS found USING (id);

-- subscriptions::LIST
SELECT remote_id, publication FROM tidewater_subscription;

-- subscriptions::LIST_OF_REMOTE
SELECT publication FROM tidewater_subscription WHERE remote_id = ?1 ORDER BY publication;

-- subscriptions::FIND_UPLOAD
SELECT v.n, sequence, upload_id FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS BINARY) AS c1, CAST(?3 AS CHAR) AS c2) AS v JOIN tidewater_subscription ON remote_id = v.c1 AND publication = v.c2;

-- subscriptions::FIND_UPLOAD_OF_USER
SELECT v.n, sequence, upload_id FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS BINARY) AS c1, CAST(?3 AS CHAR) AS c2, CAST(?4 AS CHAR) AS c3) AS v JOIN tidewater_subscription ON remote_id = v.c1 AND publication = v.c2 JOIN tidewater_remote ON id = v.c1 AND user_name = v.c3;

-- subscriptions::READ_UPLOAD
SELECT sequence, upload_id, result FROM tidewater_subscription WHERE remote_id = ?1 AND publication = ?2;

-- subscriptions::READ_RESULT
SELECT result FROM tidewater_subscription WHERE remote_id = ?1 AND publication = ?2;

-- subscriptions::READ_UPLOAD_TIME
SELECT uploaded_ms FROM tidewater_subscription WHERE remote_id = ?1 AND publication = ?2;

-- subscriptions::READ_SERIALS
SELECT scope_serial, previous_serial, graced_serial, given_back_serial FROM tidewater_subscription WHERE remote_id = ?1 AND publication = ?2;

-- subscriptions::INSERT
INSERT INTO tidewater_subscription (remote_id, publication) VALUES (?2, ?3);

-- subscriptions::TAKE_NUMBERS
UPDATE tidewater_subscription SET sequence = ?4, upload_id = ?5 WHERE remote_id = ?2 AND publication = ?3 AND sequence + 1 = ?4;

-- subscriptions::STORE_RESULTS
UPDATE tidewater_subscription SET result = ?4, graced_serial = ?5, uploaded_ms = ?6 WHERE remote_id = ?2 AND publication = ?3;

-- subscriptions::NOTE_GIVEN_BACK
UPDATE tidewater_subscription SET given_back_serial = scope_serial WHERE remote_id = ?1 AND publication = ?2;

-- subscriptions::GRACE_PREVIOUS_SCOPE
UPDATE tidewater_subscription SET graced_serial = previous_serial WHERE remote_id = ?1 AND publication = ?2 AND scope_serial = ?3 AND graced_serial < previous_serial;

-- subscriptions::ISSUE_SCOPE
INSERT INTO tidewater_subscription (remote_id, publication, scope_serial) VALUES (?1, ?2, 1) ON DUPLICATE KEY UPDATE previous_serial = CASE WHEN ?3 IN (tidewater_subscription.scope_serial, tidewater_subscription.previous_serial) THEN ?3 ELSE tidewater_subscription.scope_serial END, scope_serial = tidewater_subscription.scope_serial + 1;

-- subscriptions::DELETE_OF_REMOTE
DELETE FROM tidewater_subscription WHERE remote_id = ?1;

-- subscriptions::DELETE_OF_USER
DELETE FROM tidewater_subscription WHERE remote_id IN (SELECT id FROM tidewater_remote WHERE user_name = ?1);

-- subscriptions::DELETE_ALL
DELETE FROM tidewater_subscription;

-- sync_history::LIST_LAST
SELECT remote_id, user_name, publications, started_ms, duration_ms, inserts, updates, deletes, upserts, removals, conflicts, refused, bytes_received, bytes_sent, error FROM tidewater_sync_history ORDER BY started_ms DESC, id DESC LIMIT 20;

-- sync_history::LIST_UPLOADS
SELECT remote_id, user_name, publications, started_ms, duration_ms, inserts, updates, deletes, upserts, removals, conflicts, refused, bytes_received, bytes_sent, error FROM tidewater_sync_history WHERE inserts + updates + deletes > 0 AND started_ms <= ?2 AND started_ms + duration_ms >= ?1 ORDER BY started_ms DESC, id DESC LIMIT ?3;

-- sync_history::READ_LAST_END
SELECT max(started_ms + duration_ms) FROM tidewater_sync_history WHERE remote_id = ?1 AND error = '';

-- sync_history::INSERT
INSERT INTO tidewater_sync_history (remote_id, user_name, publications, started_ms, duration_ms, inserts, updates, deletes, upserts, removals, conflicts, refused, bytes_received, bytes_sent, error) VALUES (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16);

-- sync_history::PRUNE
DELETE FROM tidewater_sync_history WHERE started_ms < ?1 LIMIT ?2;

-- users::LIST
SELECT name, password_hash, disabled, created_ms, proven_ms, proven_by, claims FROM tidewater_user_account ORDER BY name;

-- users::FIND
SELECT v.n, name, password_hash, disabled, created_ms, proven_ms, proven_by, claims FROM (SELECT CAST(?1 AS SIGNED) AS n, CAST(?2 AS CHAR) AS c1) AS v JOIN tidewater_user_account ON name = v.c1;

-- users::READ_CLAIMS
SELECT claims FROM tidewater_user_account WHERE name = ?1;

-- users::INSERT
INSERT INTO tidewater_user_account (name, password_hash, disabled, created_ms, proven_ms, proven_by, claims) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- users::PROVE
UPDATE tidewater_user_account SET proven_ms = ?2, proven_by = ?3, claims = ?4 WHERE name = ?1;

-- users::SET_PASSWORD
UPDATE tidewater_user_account SET password_hash = ?2 WHERE name = ?1;

-- users::REPLACE_PASSWORD
UPDATE tidewater_user_account SET password_hash = ?3 WHERE name = ?1 AND password_hash = ?2;

-- users::SET_DISABLED
UPDATE tidewater_user_account SET disabled = ?2 WHERE name = ?1;

-- users::DELETE
DELETE FROM tidewater_user_account WHERE name = ?1;

