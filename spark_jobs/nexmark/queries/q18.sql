-- The last bid of each bidder on each auction; of two in the same millisecond the later event.
-- mode: update
-- key: bidder, auction
SELECT last.*, newest
FROM (
    SELECT max_by(struct(auction, bidder, price, channel, url, dateTime, extra), struct(dateTime, n)) AS last,
           max(n) AS newest
    FROM bid
    GROUP BY bidder, auction
)
