-- name: take
-- Take a lock that is free or lapsed, with the next fence; changes nothing while somebody holds it.
INSERT INTO alkstore_lock (name, fence, expires_at) VALUES (?1, 1, ?2)
ON CONFLICT (name) DO UPDATE SET fence = fence + 1, expires_at = excluded.expires_at
WHERE alkstore_lock.expires_at IS NULL OR alkstore_lock.expires_at <= ?3;

-- name: find
-- The fence of a lock, and until when it is held.
SELECT fence, expires_at FROM alkstore_lock WHERE name = ?1;

-- name: renew
-- Move the end of a live lease, or free it (NULL); changes nothing if it is not live.
UPDATE alkstore_lock SET expires_at = ?4
WHERE name = ?1 AND fence = ?2 AND expires_at > ?3;

-- name: held
-- The locks held now; sorted by who asks, because a file in UTF-16 sorts otherwise.
SELECT name, fence, expires_at FROM alkstore_lock WHERE expires_at > ?1;

-- name: is_live
-- One row if this fence holds the lock now.
SELECT 1 FROM alkstore_lock WHERE name = ?1 AND fence = ?2 AND expires_at > ?3;
