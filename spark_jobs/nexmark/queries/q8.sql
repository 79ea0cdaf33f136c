-- Persons who opened an auction in the ten seconds in which they came.
-- mode: append
-- event time: yes
SELECT newcomer.id, newcomer.name, newcomer.span.start AS starttime, greatest(newcomer.n, selling.n) AS newest
FROM (
    SELECT id, name, window(dateTime, '10 seconds') AS span, max(n) AS n
    FROM person
    GROUP BY id, name, window(dateTime, '10 seconds')
) AS newcomer
JOIN (
    SELECT seller, window(dateTime, '10 seconds') AS span, max(n) AS n
    FROM auction
    GROUP BY seller, window(dateTime, '10 seconds')
) AS selling
ON newcomer.id = selling.seller AND newcomer.span = selling.span
