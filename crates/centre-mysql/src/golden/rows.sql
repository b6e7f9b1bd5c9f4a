-- without_parent
SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM `purchase` p WHERE p.`a` = ?2 AND p.`region` = ?3);

-- lock_by_key
SELECT 1 FROM `purchase` AS t WHERE t.`a` = ?2 AND t.`region` = ?3 AND CAST(t.`region` AS BINARY) = CAST(?3 AS BINARY) FOR UPDATE;

-- read_by_key
SELECT ?1, true, t.* FROM `purchase` t WHERE t.`a` = ?2 AND t.`region` = ?3 AND CAST(t.`region` AS BINARY) = CAST(?3 AS BINARY);

-- insert
INSERT INTO `purchase` (`a`, `region`, `cost`, `notes`) VALUES (?2, ?3, coalesce(?4, (7)), ?5);

-- update
UPDATE `purchase` SET `cost` = ?4, `notes` = ?5 WHERE `a` = ?2 AND `region` = ?3 AND CAST(`region` AS BINARY) = CAST(?3 AS BINARY);

-- delete
DELETE FROM `purchase` WHERE `a` = ?2 AND `region` = ?3 AND CAST(`region` AS BINARY) = CAST(?3 AS BINARY);

-- children
SELECT ?1 FROM `purchase` t JOIN child c ON t.a = c.parent WHERE t.`a` = ?2 AND t.`region` = ?3 AND CAST(t.`region` AS BINARY) = CAST(?3 AS BINARY) LIMIT 1;
SELECT ?1, c.id FROM `purchase` t JOIN child c ON t.a = c.parent WHERE t.`a` = ?2 AND t.`region` = ?3 AND CAST(t.`region` AS BINARY) = CAST(?3 AS BINARY);

