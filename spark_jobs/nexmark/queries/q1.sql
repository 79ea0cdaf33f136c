-- Prices converted from dollars to euros. Twelve digits are more than a price has, and few enough to count in a long.
-- mode: append
SELECT auction, bidder, 0.908 * CAST(price AS DECIMAL(12)) AS price, dateTime, extra, n AS newest
FROM bid
