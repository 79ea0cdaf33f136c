-- The highest bids of each ten seconds: bids joined with the highest price. A bid on the boundary counts in both windows.
-- mode: append
-- event time: yes
SELECT bid.auction, bid.price, bid.bidder, bid.dateTime, bid.extra, greatest(bid.n, highest.n) AS newest
FROM bid
JOIN (
    SELECT price, n, window_time(window) AS last
    FROM (SELECT max(price) AS price, max(n) AS n, window FROM bid GROUP BY window(dateTime, '10 seconds'))
) AS highest
-- `last` is a microsecond before the window's end.
ON bid.price = highest.price
AND bid.dateTime >= highest.last - INTERVAL '9.999999' SECOND
AND bid.dateTime <= highest.last + INTERVAL '0.000001' SECOND
