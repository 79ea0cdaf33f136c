-- Who sells in category 10, in three states. Both sides are kept for ever.
-- mode: append
SELECT person.name, person.city, person.state, auction.id, greatest(person.n, auction.n) AS newest
FROM auction
JOIN person ON auction.seller = person.id
WHERE auction.category = 10 AND person.state IN ('OR', 'ID', 'CA')
