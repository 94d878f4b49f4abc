-- name: alive
-- Nothing, which a transaction that has failed refuses; its COMMIT would be answered as if all were well.
SELECT;
