-- Bids with the folders of their address.
-- mode: append
SELECT auction, bidder, price, channel, parts[3] AS dir1, parts[4] AS dir2, parts[5] AS dir3, n AS newest
FROM (SELECT *, split(url, '/', 7) AS parts FROM bid)
