-- With on_published = keep a mark writes a new version of the row, and touches no index where that fits on the row's own page. A
-- batch marks about a third of a page's rows at once, which need room beside those that they replace: with 15 % of a page left free
-- every eighth mark found none, and wrote to the indexes, to that of message_id wherever chance would have it. Holds for pages
-- written from now on.
ALTER TABLE outbox.message SET (fillfactor = 75);
