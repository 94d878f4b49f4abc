-- Locks; what takes more than one statement is a function of migrations/0004_leases.sql.

-- name: take
-- Take a lock that is free or lapsed, with the next fence; changes nothing while somebody holds it.
SELECT taken, until FROM {schema}.take_lock($1::text, $2::bigint, $3::bigint);

-- name: renew
-- Move the end of a live lease, or free it (0); changes nothing if it is not live.
SELECT {schema}.renew_lock($1::text, $2::bigint, $3::bigint, $4::text[], $5::bigint);

-- name: held
-- The locks held now.
SELECT name, fence, expires_at FROM {schema}.lock WHERE expires_at > {schema}.now() ORDER BY name;
