-- Bids with their auction, in category 10. Both sides are kept for ever. Auctions first: Spark writes what it finds on
-- the other side once more, and there are fewer auctions to write than bids.
-- mode: append
SELECT bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.dateTime AS bid_dateTime, bid.extra AS bid_extra,
       auction.itemName, auction.description, auction.initialBid, auction.reserve,
       auction.dateTime AS auction_dateTime, auction.expires, auction.seller, auction.category,
       auction.extra AS auction_extra, greatest(bid.n, auction.n) AS newest
FROM auction
JOIN bid ON bid.auction = auction.id
WHERE auction.category = 10
