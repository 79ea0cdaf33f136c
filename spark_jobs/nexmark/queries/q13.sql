-- Bids with a value from a bounded table beside the stream.
-- mode: append
SELECT bid.auction, bid.bidder, bid.price, bid.dateTime, side_input.value, bid.n AS newest
FROM bid
JOIN side_input ON bid.auction % 10000 = side_input.key
