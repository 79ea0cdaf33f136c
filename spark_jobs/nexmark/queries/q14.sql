-- Bids of a range of prices, the hour of day in words, and how many letters c their text has, by a user function.
-- mode: append
SELECT auction, bidder, 0.908 * price AS price,
       CASE
           WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
           WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
           ELSE 'otherTime'
       END AS bidTimeType,
       dateTime, extra, count_char(extra, 'c') AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
