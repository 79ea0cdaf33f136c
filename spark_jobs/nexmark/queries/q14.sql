-- Bids of a range of prices, the hour of day in words, and how many letters c their text has, by a user function.
-- mode: append
SELECT auction, bidder, euros AS price,
       CASE
           WHEN hour_of_day BETWEEN 8 AND 18 THEN 'dayTime'
           WHEN hour_of_day <= 6 OR hour_of_day >= 20 THEN 'nightTime'
           ELSE 'otherTime'
       END AS bidTimeType,
       dateTime, extra, count_char(extra, 'c') AS c_counts, n AS newest
FROM (SELECT *, 0.908 * CAST(price AS DECIMAL(12)) AS euros, hour(dateTime) AS hour_of_day FROM bid)
WHERE euros > 1000000 AND euros < 50000000
