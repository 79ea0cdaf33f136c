-- The auctions with the most bids of ten seconds, every two seconds. Counted by panes of two seconds first: a bid then
-- counts once, and not in each of its five windows.
-- mode: append
-- event time: yes
-- beside: starttime
SELECT hot.auction, hot.num, starttime, newest
FROM (
    SELECT inline(filter(counts, one -> one.num = most)) AS (auction, num), starttime, newest
    FROM (
        SELECT collect_list(struct(auction, num)) AS counts, max(num) AS most, span.start AS starttime, max(n) AS newest
        FROM (
            SELECT auction, sum(bids) AS num, max(n) AS n, window(pane, '10 seconds', '2 seconds') AS span
            FROM (
                SELECT auction, count(*) AS bids, max(n) AS n, window(dateTime, '2 seconds') AS pane
                FROM bid
                GROUP BY auction, window(dateTime, '2 seconds')
            )
            GROUP BY auction, window(pane, '10 seconds', '2 seconds')
        )
        GROUP BY span
    )
) AS hot
