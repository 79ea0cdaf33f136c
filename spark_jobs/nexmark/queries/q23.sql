-- Bids with their bidder and each auction that the bidder opened. All three sides are kept for ever.
-- mode: append
SELECT bid.bidder, bid.price, bid.channel, bid.url, bid.extra AS bid_extra,
       person.id AS person_id, person.name, person.emailAddress, person.creditCard, person.city, person.state,
       person.extra AS person_extra,
       auction.itemName, auction.description, auction.initialBid, auction.reserve,
       auction.dateTime AS auction_dateTime, auction.expires, auction.seller, auction.category,
       auction.extra AS auction_extra, greatest(person.n, auction.n, bid.n) AS newest
FROM person
JOIN auction ON auction.seller = person.id
JOIN bid ON bid.bidder = person.id
